"""Record right calls of the kernels of torch's dispatcher."""
