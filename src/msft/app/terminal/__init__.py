"""What is printed: progress, live table, scoreboard, and the texts of validate, train and plan.

Read `progress.py` first: its board follows a run, and the live table and plain lines both show it.
The other files turn what was found into text, one file a command. They decide nothing and write no
file; they may import what the app may, but none of the app's commands.
"""
