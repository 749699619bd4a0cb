"""The smallest server on the MCP SDK: the floor that the program's start is compared with."""

from mcp.server import MCPServer

server = MCPServer("bare", log_level="WARNING")


@server.tool()
def echo(text: str) -> str:
    """Return the text."""
    return text


if __name__ == "__main__":
    server.run()
