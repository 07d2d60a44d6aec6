"""`python -m kvp_ext.cli`, for launchers such as torchrun."""

from . import main

main()
