"""From an instance of a template to machine code: the compiler, its flags, the translation unit."""
