"""What keeps vacuum of the queue's database from removing dead rows: the holder of the horizon."""
