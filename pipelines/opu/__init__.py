"""`load.opu`: an export of Gmap2Brief becomes the whole content of `opu.brief_digital_certificate_opu`.

`table` declares the columns and decodes records: edit its `COLUMNS` to fit the real export. `export` is the client of
Gmap2Brief: edit its `ExportProtocol` to fit the real service. `load` is the pipeline.
"""
