"""Which requests compute which tokens at each step, and which pages of the cache they own."""

from collections import deque
from dataclasses import dataclass, field

from opmux.errors import invalid


class PageAllocator:
    """The free pages of a cache; a page has one owner at a time."""

    def __init__(self, pages: int) -> None:
        """Make all of `pages` pages free."""
        self.pages = pages
        self._free = deque(range(pages))
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` pages, or none at all and return None where fewer are free."""
        if count > len(self._free):
            return None
        taken = [self._free.popleft() for _ in range(count)]
        self._taken.update(taken)
        return taken

    def release(self, pages: list[int]) -> None:
        """Return pages.

        Raises:
            InvalidArgument: A page is given back that is not taken; nothing is given back then.
        """
        strangers = [page for page in pages if page not in self._taken]
        if strangers or len(set(pages)) < len(pages):
            remedy = f"free are {sorted(self._free)}"
            raise invalid("demo", "pages", "pages that are taken, each once", str(pages), remedy)
        self._taken.difference_update(pages)
        self._free.extend(pages)


@dataclass
class Request:
    """One prompt and its progress."""

    number: int
    prompt: list[int]
    new_tokens: int
    """How many tokens to generate."""
    arrival: int = 0
    """The first step that may compute it."""
    generated: list[int] = field(default_factory=list)
    cached: int = 0
    """Tokens whose keys and values are in the cache."""
    pages: list[int] = field(default_factory=list)
    joined: int | None = None
    """The step that computed its first tokens."""
    left: int | None = None
    """The step that gave its last token."""

    @property
    def tokens(self) -> list[int]:
        """The prompt and what was generated so far."""
        return self.prompt + self.generated


@dataclass(frozen=True)
class Work:
    """The tokens of one request in one step."""

    request: Request
    start: int
    """Tokens of the request that are in the cache already."""
    tokens: list[int]

    @property
    def samples(self) -> bool:
        """Whether these tokens end with the last known one, so that the step yields a new token."""
        return self.start + len(self.tokens) == len(self.request.tokens)


@dataclass(frozen=True)
class StepRecord:
    """What one step computed."""

    step: int
    prefill_tokens: int
    decode_tokens: int
    joined: tuple[int, ...]
    left: tuple[int, ...]
    waiting: int
    """Requests that had arrived and found too few free pages."""
    pages: int
    """Pages that were taken."""


class Scheduler:
    """Continuous batching: each step advances all running requests, and waiting ones join when pages are free.

    A request takes the pages of its whole length when it joins, so that a running one never has to stop; those
    that find too few wait, first come first served. Requests that generate compute one token each; what is left
    of the step's tokens goes to chunks of prompts.
    """

    def __init__(self, allocator: PageAllocator, page_size: int, chunk: int, tokens_per_step: int) -> None:
        """Start with no requests.

        Args:
            allocator: The pages.
            page_size: Tokens in a page.
            chunk: Most tokens of one prompt in one step.
            tokens_per_step: Most tokens in one step; generating requests have theirs first and always.
        """
        self.allocator = allocator
        self.page_size = page_size
        self.chunk = chunk
        self.tokens_per_step = tokens_per_step
        self.step = 0
        self.records: list[StepRecord] = []
        self._waiting: list[Request] = []
        self._running: list[Request] = []

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue.

        Raises:
            InvalidArgument: The prompt is empty, or the request is longer than the whole cache.
        """
        if not request.prompt or request.new_tokens < 1:
            got = f"{len(request.prompt)} and {request.new_tokens}"
            remedy = "give it a prompt and ask for a token"
            expected = "at least one prompt token and one new token"
            raise invalid("demo", f"request {request.number}", expected, got, remedy)
        if self._pages_of(request) > self.allocator.pages:
            expected = f"tokens that fit the {self.allocator.pages} pages of the cache"
            got = f"tokens for {self._pages_of(request)}"
            remedy = "give the cache more pages, or ask for fewer tokens"
            raise invalid("demo", f"request {request.number}", expected, got, remedy)
        self._waiting.append(request)

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting or running."""
        return not self._waiting and not self._running

    def plan(self) -> list[Work]:
        """The work of the next step; empty where no request has arrived yet."""
        arrived = [request for request in self._waiting if request.arrival <= self.step]
        for request in arrived:
            pages = self.allocator.allocate(self._pages_of(request))
            if pages is None:
                break
            request.pages = pages
            self._waiting.remove(request)
            self._running.append(request)
        decodes = [request for request in self._running if request.generated]
        work = [Work(request, request.cached, request.tokens[request.cached :]) for request in decodes]
        budget = self.tokens_per_step - len(work)
        for request in self._running:
            count = min(self.chunk, budget, len(request.prompt) - request.cached)
            if not request.generated and count > 0:
                work.append(Work(request, request.cached, request.prompt[request.cached : request.cached + count]))
                budget -= count
        return work

    def complete(self, work: list[Work], sampled: dict[int, int]) -> None:
        """End the step: tokens are cached, sampled ones join their requests, finished requests leave.

        Args:
            work: What `plan` gave.
            sampled: For each piece of work that samples, its request's number -> the new token.
        """
        taken = self.allocator.pages - self.allocator.free
        joined, left = [], []
        decode_tokens = sum(1 for item in work if item.request.generated)
        for item in work:
            request = item.request
            if request.joined is None:
                request.joined = self.step
                joined.append(request.number)
            samples = item.samples
            request.cached += len(item.tokens)
            if samples:
                request.generated.append(sampled[request.number])
            if len(request.generated) == request.new_tokens:
                request.left = self.step
                left.append(request.number)
                self._running.remove(request)
                self.allocator.release(request.pages)
        prefill_tokens = sum(len(item.tokens) for item in work) - decode_tokens
        waiting = sum(request.arrival <= self.step for request in self._waiting)
        self.records.append(
            StepRecord(self.step, prefill_tokens, decode_tokens, tuple(joined), tuple(left), waiting, taken)
        )
        self.step += 1

    def _pages_of(self, request: Request) -> int:
        # The last generated token is never an input, so its keys need no slot.
        return -(-(len(request.prompt) + request.new_tokens - 1) // self.page_size)
