"""`korvet top`: a view of brokers, topics and groups that is drawn again at an interval."""
