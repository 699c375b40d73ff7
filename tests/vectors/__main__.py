"""Write the test vectors anew: ``python -m tests.vectors``."""

from tests.vectors.files import FOLDER, contents

for name, text in contents().items():
    (FOLDER / name).write_text(text)
