public class Sum {
    public static void main(String[] args) {
        System.out.println("sum " + (40 + 2));
    }
}
