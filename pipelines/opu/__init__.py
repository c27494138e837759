"""`load.opu`: an export of Gmap2Brief becomes the whole content of `opu.brief_digital_certificate_opu`.

table.py    the columns, the key and what each field must look like: edit here to fit the real export
export.py   the protocol of Gmap2Brief: paths, names of fields and states; edit here to fit the real service
records.py  a record of the archive as a row of the table
load.py     the pipeline: start, wait, download, replace
"""
