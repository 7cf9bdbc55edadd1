"""Tables: stored rows selected, checked for comparability and judged, for every view to show."""
