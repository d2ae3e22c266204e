"""What a release is made of, and what is checked before it: ``make release`` and ``make release-check``.

    building   the wheel and the sdist, twice; both builds must be equal to the byte
    sbom       a CycloneDX list of what is in them and what they need, with licences
    api        the public names and signatures of a version, to compare two versions
    verdict    what the changes of the API mean for the version number
    checks     everything that must hold before a release, one line each

Nothing here is published, signed or uploaded: that is a person's decision.
"""
