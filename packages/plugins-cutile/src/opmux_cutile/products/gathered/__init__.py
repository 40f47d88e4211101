"""`linear` where there is no copy engine: on Ampere and Ada, threads copy the operands."""
