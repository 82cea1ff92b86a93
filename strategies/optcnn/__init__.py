"""OptCNN: exact dynamic programming over per-operator choices under an additive cost."""
