"""How a setting is declared: what its fields say, and the kinds of values they have.

Components import it and declare their options with it; `assembly/settings` reads them.
"""
