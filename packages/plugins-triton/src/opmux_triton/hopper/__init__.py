"""What the Gluon kernels for Hopper (sm_90) of several families share: names, descriptors, the order of tiles."""
