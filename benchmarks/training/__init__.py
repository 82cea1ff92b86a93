"""Models that are raced, and the ways of torch that they are raced against."""
