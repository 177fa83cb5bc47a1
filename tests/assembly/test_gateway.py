"""The gateway as the settings have it."""

from trunkline import __version__
from trunkline.assembly.gateway import identity_of, parking_of
from trunkline.config import Config, GatewaySettings
from trunkline.gateway.parking import Limits
from trunkline.gateway.session import Identity


def test_it_says_of_itself_and_parks_what_the_settings_say() -> None:
    settings = GatewaySettings(
        name="n",
        instructions="i",
        strict_lifecycle=False,
        park_ttl=1.0,
        max_parked=2,
        max_parked_per_principal=3,
    )
    config = Config(gateway=settings)
    assert identity_of(config) == Identity("n", __version__, "i", strict_lifecycle=False)
    assert identity_of(config).server == {"name": "n", "version": __version__}
    assert parking_of(config) == Limits(1.0, 2, 3)
