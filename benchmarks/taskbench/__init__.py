"""Task Bench: one task graph, run by several systems (Slaughter et al., SC 2020)."""
