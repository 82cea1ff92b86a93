"""The exhaustive search of the published space: branch and bound on simulated step times."""
