"""What the Dockerfile says of health; scripts/check_image.py rehearses it as a whole."""

import json

from scripts.check_image import REPOSITORY, read_dockerfile
from streammoe.commands import main


def test_health_is_asked_by_the_settings_that_it_runs_with():
    said = {each.name: each for each in read_dockerfile(REPOSITORY / "Dockerfile")}
    program, name, config, *options = json.loads(said["HEALTHCHECK"].rest.partition("CMD ")[2])
    assert [program] == said["ENTRYPOINT"].exec_form()
    assert said["CMD"].exec_form() == ["run", config]
    known = [option for each in main.get_command(None, name).params for option in each.opts]
    assert set(options) <= set(known)
