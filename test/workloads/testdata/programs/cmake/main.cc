#include <iostream>
#include <thread>

extern "C" int add(int, int);

int main()
{
	int sum = 0;
	std::thread t([&] { sum = add(40, 2); });
	t.join();
	std::cout << "sum " << sum << std::endl;
	return sum != 42;
}
