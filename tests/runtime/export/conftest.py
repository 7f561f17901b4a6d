"""Most tests of exported programs call one once, so that its first call has to generate code,
as in the tests of aot."""

from tests.runtime.aot.conftest import generated_at_once  # noqa: F401
