"""What is printed: progress, results, and the texts of validate and plan.

Read `board.py` first: it follows a run, and the live table and the plain lines of `progress.py`
both show it. `screen.py` prints, in lines that fit. The other files turn what was found into text,
one file a command. They decide nothing and write no file; they may import what the app may, but
none of the app's commands.
"""
