"""Matrix products: persistent blocks that compute tile after tile."""
