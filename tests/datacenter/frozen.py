"""Imported last by the process that ranks are forks of: what is loaded is left out of collections from then on.

A rank's collector would otherwise go through all of it, and so copy what ranks share.
"""

import gc

gc.freeze()
