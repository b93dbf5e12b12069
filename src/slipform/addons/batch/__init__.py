"""Answer files and datasets with a model; `slipform.runner` has the public names."""
