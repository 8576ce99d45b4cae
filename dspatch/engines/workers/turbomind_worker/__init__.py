"""TurboMind's own conversion, run without a GPU: real code of the installed wheel, stubbed where it needs one."""
