"""Read expression matrices: any container, any scale, the model's genes in the model's order."""
