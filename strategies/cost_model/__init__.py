"""Cost models: how long the tasks of a step take."""
