"""Charts as data, which matplotlib and the page both draw.

description     panels, lines, cells and axes
axes            scale, ends and ticks of the axes of values, of a training, of depth, and of colours
lines           what is drawn of a series
on_matplotlib   charts as figures of matplotlib, and their files
on_plotly       charts as dictionaries of Plotly
"""
