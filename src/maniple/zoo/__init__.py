"""The model zoo: published networks as plain torch modules, whose forward gives the loss."""
