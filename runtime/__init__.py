"""The runtime: launches, dependence analysis, schedules, their execution, and the ranks of a world."""
