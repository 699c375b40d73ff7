"""Imported last by the process from which ranks are forked: excludes all loaded objects from garbage collection.

Otherwise each rank's collector would visit them, and so copy memory that the ranks share.
"""

import gc

gc.freeze()
