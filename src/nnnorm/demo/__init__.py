"""`nnnorm demo`: the main job on the data that ships with the package.

run     what is computed
story   the results in words and tables
"""

from nnnorm.demo.run import run_demo
from nnnorm.demo.story import introduce_demo, tell_demo
