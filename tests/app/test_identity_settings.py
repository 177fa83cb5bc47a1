"""Identity and suspension limits of the gateway, built from the settings."""

from trunkline import __version__
from trunkline.app.build import build_identity, build_suspension_limits
from trunkline.config import Config, GatewaySettings
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import SuspendedCallLimits


def test_identity_and_suspension_limits_come_from_the_settings() -> None:
    settings = GatewaySettings(
        name="n",
        instructions="i",
        strict_lifecycle=False,
        input_timeout=1.0,
        max_suspended=2,
        max_suspended_per_principal=3,
    )
    config = Config(gateway=settings)
    assert build_identity(config) == GatewayIdentity("n", __version__, "i", strict_lifecycle=False)
    assert build_identity(config).server_info == {"name": "n", "version": __version__}
    assert build_suspension_limits(config) == SuspendedCallLimits(1.0, 2, 3)
