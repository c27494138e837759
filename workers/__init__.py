"""What runs jobs. `pool.py` is the door: a WorkerPool starts the threads and keepers, and ends them."""
