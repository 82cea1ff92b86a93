"""Strategies: plug-ins that turn a graph and a machine into a plan."""
