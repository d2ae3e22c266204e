# Words for ./dev, where everything is.
.DEFAULT_GOAL := help
.NOTPARALLEL:

COMMANDS := demo check test lint format bench prove docs lock servers kafka mirrormaker dynamodb mariadb mongodb release release-check clean help
.PHONY: $(COMMANDS)

$(COMMANDS):
	@./dev $@ $(ARGS)
