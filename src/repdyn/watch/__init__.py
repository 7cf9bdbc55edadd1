"""Running and finished runs in a browser, live: a table of them all, and the report of each.

run    one run: the files in its folder, its rows in memory, and what the table says of it
index  all runs of all stores under the given paths
app    the pages, who may see them, and the server
"""
