"""Running and finished runs in a browser, live: a table of them all, and the report of each.

index  all runs of all stores under the given paths: the files in their folders, and what the table
       says of them
app    the pages, who may see them, and the server
"""
