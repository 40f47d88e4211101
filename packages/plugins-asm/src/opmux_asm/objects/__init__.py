"""Code objects: written and assembled when the wheel is built, verified when they are loaded."""
