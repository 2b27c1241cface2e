"""Figures: matplotlib drawings of one run or of a contest, in the colours of the page.

Read `chart.py` first, which makes an empty figure and brings a drawn one into the page; `bars.py`
and `legend.py` are shared, each other file draws the figures of one subject. A figure is a function
of its data and a width in pixels. No file imports tables or pages, nor matplotlib as it is loaded.
"""
