"""The search of the Sample-Operator-Attribute-Parameter space by MCMC over an execution simulator."""
