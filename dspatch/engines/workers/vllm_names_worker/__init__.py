"""Whether vLLM's loaders take a checkpoint's names: tensors without storage, in the sizes of the checkpoint."""
