"""Figures: matplotlib drawings of one run or of a comparison, in the colours of the page.

Read `chart.py` first: colours, an empty figure, legends, bars, and a figure's way into the page.
Each other file draws the figures of one subject. A figure is a function of its data and a width in
pixels. No file imports tables, and no file imports matplotlib as it is loaded.
"""
