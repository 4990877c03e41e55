"""The catalogue of hostile programs (tests/sandbox/hostile.py), all subjects together."""

from tests.sandbox.hostile_answers import CODE, ENDINGS, INTERPRETER, STDIN
from tests.sandbox.hostile_limits import MEMORY, OUTPUT, PROCESSES, TIME
from tests.sandbox.hostile_walls import FILES, LEAVINGS, WALLS

GROUPS = (TIME, PROCESSES, MEMORY, OUTPUT, STDIN, FILES, WALLS, CODE, ENDINGS, INTERPRETER, LEAVINGS)
PROGRAMS = [program for group in GROUPS for program in group]
