"""Near-duplicates: requests under different keys that probably mean the same. It only reports them,
and decides nothing.

words     a text becomes values (amounts, numbers, dates, ids, names) and prose
reading   a request becomes one digest of all its values, and a sketch of each piece of prose
window    recent requests of each scope: equal values first, then similar prose
"""
