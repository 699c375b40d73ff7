"""Pure functions that divide rows or columns among participants, one module per family.

Every function takes the basis of the division (labels, ids, a property, a number of rows, column names) as its first
argument and everything else by keyword:

``population``  number of participants
``sizes``       rows (or columns) of each participant
``alpha``       concentration of a Dirichlet distribution, above 0
``seed``        integer from 0; the same arguments and seed give the same parts. NumPy may change its random streams
                from one release to the next (NEP 19), and the parts with them

and returns ``Parts``.
"""
