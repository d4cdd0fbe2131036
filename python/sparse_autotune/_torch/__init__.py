"""Everything that uses private interfaces of torch: what a new version of torch may break."""
