"""Import: an unmodified torch.nn.Module becomes a task graph."""
