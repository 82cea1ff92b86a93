"""FlexFlow's figures, one module for each."""
